// Two devices of one user and a stranger, with an unmodified supabase-js: upserts, keyset pages, pushes, tombstones.
// Prints what each step saw, as JSON.
//   node sync.mjs URL ANON_KEY USER_TOKEN STRANGER_TOKEN SERVER_MS
import { createClient } from '@supabase/supabase-js'

const [url, anonKey, token, stranger, serverMs] = process.argv.slice(2)
const auth = { persistSession: false, autoRefreshToken: false }
const device = (owner) => createClient(url, anonKey, { auth, global: { headers: { Authorization: `Bearer ${owner}` } } })
const [first, second, other] = [device(token), device(token), device(stranger)]
const key = { onConflict: 'user_id,id' }
const now = Number(serverMs)
const good = ({ data, error }) => {
  if (error) throw new Error(JSON.stringify(error))
  return data
}

// Pages after the cursor until a short one, as the first clients pull.
async function pull(client, table, cursor) {
  const found = []
  for (;;) {
    const page = good(await client.from(table).select('*').gt('change_seq', cursor).order('change_seq').limit(1000))
    found.push(...page)
    if (page.length < 1000) return found
    cursor = page.at(-1).change_seq
  }
}

good(await first.from('topics').upsert({ id: 't', name: 'otters', updated_at: now }, key))
const cards = Array.from({ length: 1500 }, (_, n) => ({ id: `c${n}`, topic_id: 't', body: `card ${n}`, updated_at: now }))
good(await first.from('cards').upsert(cards.slice(0, 1000), key))
good(await first.from('cards').upsert(cards.slice(1000), key))
const pulled = await pull(second, 'cards', 0)
const cursor = pulled.at(-1).change_seq
const written = good(await second.from('cards').upsert([
  { id: 'c0', topic_id: 't', body: 'stale', updated_at: now - 1 },
  { id: 'c1', topic_id: 't', body: 'newer', updated_at: now + 1 },
], key).select('id'))
const changed = await pull(first, 'cards', cursor)
const push = (p_changes) => second.rpc('push_changes', { p_changes })
const outcomes = good(await push([
  { table: 'cards', record: { id: 'c1', topic_id: 't', body: 'older', updated_at: now } },
  { table: 'cards', record: { id: 'lost', topic_id: 'none', updated_at: now } },
  { table: 'topics', record: { id: 't', name: 'otters', updated_at: now + 2, deleted: true } },
]))
const gone = await pull(first, 'cards', changed.at(-1).change_seq)
const state = good(await first.rpc('sync_state', { p_schema: 'bookshelf' }))
console.log(JSON.stringify({
  pulled: pulled.map((row) => row.id),
  written,
  changed: changed.map((row) => [row.id, row.body]),
  outcomes: Object.fromEntries(outcomes.map((row) => [row.id, [row.outcome, row.code]])),
  gone: gone.filter((row) => row.deleted).length,
  isUpToDate: state.tables.cards.seq === gone.at(-1).change_seq,
  stranger: await pull(other, 'cards', 0),
  number: (await first.from('topics').upsert({ id: 'x', updated_at: now, change_seq: 1 }, key)).error?.code,
  missing: (await first.from('lenses').select('*').gt('change_seq', 0)).error?.code,
}))
