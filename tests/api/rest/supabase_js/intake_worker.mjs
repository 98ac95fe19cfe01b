// An intake worker: claim, heartbeat, capacity, complete or reschedule, release. Unmodified supabase-js.
import { once } from 'node:events';
import { createClient } from '@supabase/supabase-js';

const [url, key, rounds] = process.argv.slice(2);
const supabase = createClient(url, key, { auth: { persistSession: false } });
const workerId = 'render-worker-1';
const log = [];

async function rpc(name, args) {
  const { data, error } = await supabase.rpc(name, args);
  if (error) throw new Error(`${name}: ${JSON.stringify(error)}`);
  return data;
}

async function processJob(job) {
  const jobId = job.job_id;
  const estimatedTokens = job.job_payload.estimated_tokens || 1000;
  let actualTokens = 0;
  let apiCapacityAcquired = false;
  try {
    const beat = await rpc('update_job_heartbeat', { p_job_id: jobId, p_worker_id: workerId });
    if (job.job_type.startsWith('ai_queue')) {
      const hasCapacity = await rpc('acquire_api_capacity', {
        p_provider_name: 'openai', p_api_endpoint: 'gpt-4o-mini', p_estimated_tokens: estimatedTokens });
      if (!hasCapacity) {
        const moved = await rpc('reschedule_job', { p_job_id: jobId, p_delay_seconds: 30,
          p_reason: 'api_rate_limit_backpressure', p_add_jitter: true });
        log.push({ type: job.job_type, beat, moved });
        return;
      }
      apiCapacityAcquired = true;
    }
    for (let beats = job.job_payload.beats || 0; beats > 0; beats -= 1) {
      // The test advances the clock by 60 seconds before it answers.
      console.log('beat', await rpc('update_job_heartbeat', { p_job_id: jobId, p_worker_id: workerId }));
      await once(process.stdin, 'data');
    }
    if (job.job_payload.fails) throw new Error('broken page');
    const results = { tokens_used: 700 };
    actualTokens = results.tokens_used;
    const done = await rpc('complete_job', { p_job_id: jobId, p_worker_id: workerId, p_job_result: results });
    const late = await rpc('complete_job', { p_job_id: jobId, p_worker_id: 'somebody-else' });
    const usage = await rpc('track_ai_processing_usage', { p_profile_id: job.job_payload.profile_id, p_job_id: jobId,
      p_tokens_used: results.tokens_used, p_processing_seconds: 90 });
    log.push({ type: job.job_type, beat, done, late, usage });
  } catch (error) {
    const failed = await rpc('fail_job', { p_job_id: jobId, p_worker_id: workerId,
      p_error: { code: 'broken_page', message: error.message }, p_permanent: true });
    log.push({ type: job.job_type, failed, message: error.message });
  } finally {
    if (apiCapacityAcquired) {
      await rpc('release_api_capacity', { p_provider_name: 'openai', p_api_endpoint: 'gpt-4o-mini',
        p_estimated_tokens: estimatedTokens, p_actual_tokens: actualTokens });
    }
  }
}

for (let round = 0; round < Number(rounds); round += 1) {
  const jobs = await rpc('claim_next_job_v3', { worker_id: workerId, job_types: ['ai_queue_pass1', 'fast_queue_ocr'] });
  if (jobs.length === 0) { log.push({ idle: true }); continue; }
  await processJob(jobs[0]);
}
console.log(JSON.stringify(log));
process.stdin.destroy();
