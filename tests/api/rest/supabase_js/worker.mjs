// A worker loop with an unmodified supabase-js: claim, beat, complete, until the job is over.
//   node worker.mjs URL KEY WORKER JOB LEASE_SECONDS [HOLD_AFTER]
// With HOLD_AFTER it stops in the middle of a batch once it has done so many, and waits to be killed.
import { createClient } from '@supabase/supabase-js'

const [url, key, worker, job, leaseSeconds, holdAfter] = process.argv.slice(2)
const client = createClient(url, key, {
  db: { schema: 'penstock' },
  auth: { persistSession: false, autoRefreshToken: false },
})

async function call(name, args) {
  const { data, error } = await client.rpc(name, args)
  if (error) throw new Error(`${name}: ${JSON.stringify(error)}`)
  return data
}

let done = 0
while ((await call('get_job', { p_job_id: job })).status !== 'completed') {
  const tasks = await call('claim_tasks', {
    p_worker_id: worker,
    p_max_tasks: 20,
    p_task_types: ['work'],
    p_lease_seconds: Number(leaseSeconds),
  })
  if (tasks.length === 0) {
    await call('reclaim_stale_tasks', {})
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  for (const [index, task] of tasks.entries()) {
    if (holdAfter && done >= Number(holdAfter)) {
      console.log(`holding ${tasks.length - index}`)
      await new Promise((resolve) => setTimeout(resolve, 600_000))
    }
    if (index === 0) {
      await call('heartbeat_task', { p_task_id: task.id, p_worker_id: worker, p_lease: task.lease })
    }
    await call('complete_task', {
      p_task_id: task.id,
      p_worker_id: worker,
      p_output: { n: task.input.n, by: worker },
      p_lease: task.lease,
    })
    done += 1
  }
}
console.log(`done ${done}`)
