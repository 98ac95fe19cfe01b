// Two devices of one user with an unmodified supabase-js: upsert, pull by change_seq, functions. Prints JSON.
//   node notes.mjs URL ANON_KEY USER_TOKEN
import { createClient } from '@supabase/supabase-js'

const [url, anonKey, token] = process.argv.slice(2)
const auth = { persistSession: false, autoRefreshToken: false }
const device = () => createClient(url, anonKey, { auth, global: { headers: { Authorization: `Bearer ${token}` } } })
const [first, second] = [device(), device()]
const good = ({ data, error }) => {
  if (error) throw new Error(JSON.stringify(error))
  return data
}
const pull = async (client, table, after) =>
  good(await client.from(table).select('*').gt('change_seq', after).order('change_seq').limit(1000))

const now = Date.now()
const stamp = { created_at: now, updated_at: now }
good(await first.from('books').upsert({ id: 'b1', title: 'Walden', ...stamp }, { onConflict: 'user_id,id' }))
const notes = [1, 2, 3].map((n) => ({ id: `n${n}`, book_id: 'b1', text: `text ${n}`, tags: ['Nature'], ...stamp }))
good(await first.from('notes').upsert(notes, { onConflict: 'user_id,id' }))
const pulled = await pull(second, 'notes', 0)
good(await second.from('notes').upsert({ id: 'n1', text: 'newer', created_at: now, updated_at: now + 5 }, { onConflict: 'user_id,id' }))
good(await first.from('notes').upsert({ id: 'n1', text: 'older', created_at: now, updated_at: now + 1 }, { onConflict: 'user_id,id' }))
good(await first.from('books').upsert({ id: 'b1', title: 'Walden', deleted: true, created_at: now, updated_at: now + 2 }, { onConflict: 'user_id,id' }))
const again = await pull(second, 'notes', pulled.at(-1).change_seq)
const refused = await first.from('notes').update({ change_seq: 1 }).eq('id', 'n1')
console.log(JSON.stringify({
  pulled: pulled.map((row) => row.id),
  again: Object.fromEntries(again.map((row) => [row.id, [row.text, row.deleted]])),
  refused: refused.error?.code,
  entitlements: good(await first.functions.invoke('me-entitlements', { body: {} })),
  missing: (await first.from('no_such_table').select('*')).error?.code,
}))
