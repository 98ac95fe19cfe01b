// What a browser app writes to an app's tables with an unmodified supabase-js. Prints what it got, as JSON.
//   node writes.mjs URL ANON_KEY USER_TOKEN OTHER_USER
import { createClient } from '@supabase/supabase-js'
import { randomUUID } from 'node:crypto'

const [url, anonKey, token, other] = process.argv.slice(2)
const user = createClient(url, anonKey, {
  auth: { persistSession: false, autoRefreshToken: false },
  global: { headers: { Authorization: `Bearer ${token}` } },
})
const ids = Array.from({ length: 1000 }, () => randomUUID())
const many = (title) => ids.map((id) => ({ id, title }))

const answers = {
  inserted: await user.from('notes').insert({ title: 'otters', data: { a: [1] } }).select(),
  minimal: await user.from('notes').insert({ title: 'herons' }),
  many: await user.from('notes').insert([{ title: 'a' }, { title: 'b' }]).select('id'),
  upserted: await user.from('notes').upsert(many('bulk'), { onConflict: 'user_id,id' }).select('id'),
  ignored: await user.from('notes').upsert(many('no'), { ignoreDuplicates: true }).select('id'),
  updated: await user.from('notes').update({ title: 'seals' }).eq('title', 'otters').select('title'),
  quiet: await user.from('notes').update({ score: 1 }).eq('title', 'a'),
  single: await user.from('notes').update({ title: 'whales' }).eq('title', 'b').select('title').single(),
  deleted: await user.from('notes').delete().in('title', ['bulk', 'no']).select('id'),
  called: await user.rpc('count_notes', {}),
  unfiltered: await user.from('notes').delete(),
  foreign: await user.from('notes').insert({ title: 'x', user_id: other }),
  penstock: await user.schema('penstock').from('tenants').insert({ name: 'x' }),
}
console.log(JSON.stringify(answers))
