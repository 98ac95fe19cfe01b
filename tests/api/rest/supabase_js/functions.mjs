// Calls functions of an app with an unmodified supabase-js. Prints what it got, as JSON.
//   node functions.mjs URL ANON_KEY USER_TOKEN
import { createClient } from '@supabase/supabase-js'

const [url, anonKey, token] = process.argv.slice(2)
const auth = { persistSession: false, autoRefreshToken: false }
const nobody = createClient(url, anonKey, { auth })
const user = createClient(url, anonKey, { auth, global: { headers: { Authorization: `Bearer ${token}` } } })

const failed = ({ error }) => ({ status: error.context.status })
const answers = {
  notes: await user.functions.invoke('my-notes', { body: { a: 1 } }),
  missing: failed(await user.functions.invoke('nothing', { body: {} })),
  nobody: failed(await nobody.functions.invoke('my-notes', { body: {} })),
}
console.log(JSON.stringify({ ...answers, notes: { data: answers.notes.data, error: answers.notes.error } }))
