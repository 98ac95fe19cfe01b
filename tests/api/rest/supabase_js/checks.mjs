// What a browser app does with an unmodified supabase-js. Prints what it got, as JSON.
//   node checks.mjs URL ANON_KEY USER_TOKEN FOREIGN_JOB
import { createClient } from '@supabase/supabase-js'

const [url, anonKey, token, foreignJob] = process.argv.slice(2)
const options = { db: { schema: 'penstock' }, auth: { persistSession: false, autoRefreshToken: false } }
const nobody = createClient(url, anonKey, options)
const user = createClient(url, anonKey, {
  ...options,
  global: { headers: { Authorization: `Bearer ${token}` } },
})

const started = await user.rpc('start_job', {
  p_type: 'report',
  p_params: { topic: 'otters' },
  p_tasks: [{ kind: 'work' }, { kind: 'work', priority: 1 }],
})
const id = started.data

const answers = {
  started,
  job: await user.rpc('get_job', { p_job_id: id }, { get: true }),
  paused: await user.rpc('pause_job', { p_job_id: id, p_reason: 'lunch' }),
  resumed: await user.rpc('resume_job', { p_job_id: id }),
  void: await user.rpc('set_budget', { p_job_id: id, p_amount: 5 }),
  list: await user
    .from('job_list')
    .select('id, type, topic:params->>topic', { count: 'exact' })
    .eq('type', 'report')
    .order('created_at', { ascending: false })
    .range(0, 9),
  tasks: await user
    .from('task_list')
    .select('kind,priority')
    .eq('job_id', id)
    .or('priority.lt.3,kind.in.(nothing,"a, b")'),
  counted: await user.from('task_list').select('*', { count: 'exact', head: true }).eq('job_id', id),
  single: await user.from('job_list').select('id').eq('id', id).single(),
  notSingle: await user.from('job_list').select('id').eq('id', foreignJob).single(),
  maybeSingle: await user.from('job_list').select('id').eq('id', foreignJob).maybeSingle(),
  foreign: await user.rpc('get_job', { p_job_id: foreignJob }),
  claim: await user.rpc('claim_tasks', { p_worker_id: 'me' }),
  insert: await user.from('jobs').insert({ type: 'report' }),
  unknown: await user.rpc('no_such_function', { a: 1 }),
  anonymous: await nobody.from('job_list').select('id'),
  schema: await user.schema('auth').from('users').select('*'),
}
console.log(JSON.stringify(answers))
