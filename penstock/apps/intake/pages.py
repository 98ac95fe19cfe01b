"""The pages of the dashboard: files, facts, patients with their trail, usage and the queue."""

from __future__ import annotations

from penstock.apps.intake.app import app

app.page(
    "files",
    "Files",
    source="file_list",
    columns=[
        "name",
        "status",
        "pages",
        "reason",
        "patient_id",
        "job_id",
        "artifact_id",
        "picture",
        "created_at",
    ],
    key="id",
    filters=["status", "patient_id", "name"],
    links={"job_id": "/jobs/{}"},
    files=["artifact_id", "picture"],
    order="created_at",
    description="uploaded documents, and why they wait or ended so",
)
app.page(
    "facts",
    "Facts",
    source="fact_list",
    columns=["file", "kind", "name", "value", "is_verified", "page", "picture"],
    key="id",
    filters=["kind", "patient_id", "file"],
    files=["picture"],
    order="created_at",
    description="what the documents state, with the page and the boxes of the lines that it comes from",
)
app.page(
    "patients",
    "Patients",
    source="patient_list",
    columns=["name", "is_self", "files", "consented_at", "created_at"],
    key="id",
    filters=["name"],
    order="created_at",
)
app.page(
    "trail",
    "Patient trail",
    source="patient_trail",
    columns=["at", "patient_id", "action", "record_of", "record", "actor", "job_id"],
    key="id",
    filters=["patient_id", "action"],
    links={"job_id": "/jobs/{}"},
    description="who wrote what about which patient",
)
app.page(
    "usage",
    "Usage",
    source="user_usage_tracking",
    columns={
        "billing_cycle_start": "Month",
        "plan_type": "Plan",
        "shell_files_uploaded": "Files",
        "shell_files_limit": "Limit of files",
        "total_pages_processed": "Pages",
        "pages_limit": "Limit of pages",
        "ai_tokens_used": "Tokens",
        "storage_used_mb": "Storage in MB",
        "is_over_limit": "Over limit",
    },
    key="id",
    order="billing_cycle_start",
)
app.page(
    "overview",
    "Usage of all tenants",
    source="usage_overview",
    columns={
        "billing_cycle_start": "Month",
        "tenant": "Tenant",
        "plan_type": "Plan",
        "events": "Events",
        "files_percent": "Files %",
        "pages_percent": "Pages %",
        "tokens_percent": "Tokens %",
        "storage_percent": "Storage %",
        "is_over_limit": "Over limit",
        "warnings_sent": "Warnings",
    },
    key="id",
    filters=["tenant", "plan_type"],
    order="billing_cycle_start",
    is_for_operators=True,
    description="how much of its limits each tenant has used",
)
app.page(
    "queue",
    "Queue",
    source="job_queue",
    columns=["job_name", "job_type", "status", "priority", "worker_id", "retry_count", "created_at"],
    key="id",
    filters=["job_type", "status"],
    order="created_at",
    is_for_operators=True,
)
