"""The edge to PostgreSQL: connections and calls (db), its schema (migrate), an embedded server (embedded)."""
