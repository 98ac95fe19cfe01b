// Runs the original worker of the intake's clients, guardian_worker.ts as it is, with unmodified supabase-js. The class
// leaves to its environment what is here: the members it calls, the time a job took, and the loop that claims.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createClient } from '@supabase/supabase-js';
import typescript from 'typescript';

const [url, key, rounds] = process.argv.slice(2);
const source = readFileSync(new URL('guardian_worker.ts', import.meta.url), 'utf8');
const { outputText } = typescript.transpileModule(source, { compilerOptions: { target: 'es2022' } });
const Original = new Function('processingTime', `${outputText}; return GuardianWorkerV4;`)(90);

// What the worker asked and what it was told, as it went over the wire.
const calls = [];
async function recorded(address, options) {
  const answer = await fetch(address, options);
  const text = await answer.clone().text();
  calls.push({ name: String(address).split('/').pop(), sent: JSON.parse(options.body), status: answer.status,
    got: text ? JSON.parse(text) : null });
  return answer;
}

class Worker extends Original {
  workerId = 'render-worker-1';
  logger = { info: (message, fields) => calls.push({ name: 'log', sent: fields }) };
  supabase = createClient(url, key, { auth: { persistSession: false }, global: { fetch: recorded } });

  async processJobByType(job) {
    for (let beats = job.job_payload.beats || 0; beats > 0; beats -= 1) {
      const { data } = await this.supabase.rpc('update_job_heartbeat',
        { p_job_id: job.job_id, p_worker_id: this.workerId });
      // The test advances the clock by 60 seconds before it answers.
      console.log('beat', data);
      await once(process.stdin, 'data');
    }
    if (job.job_payload.fails) throw new Error('broken page');
    return { tokens_used: 700 };
  }

  async getProfileIdFromJobPayload(job) {
    return job.job_payload.profile_id;
  }

  async handleJobError(job, error) {
    await this.supabase.rpc('fail_job', { p_job_id: job.job_id, p_worker_id: this.workerId,
      p_error: { code: 'broken_page', message: error.message }, p_permanent: true });
  }

  async claim() {
    const { data, error } = await this.supabase.rpc('claim_next_job_v3',
      { worker_id: this.workerId, job_types: ['ai_queue_pass1', 'fast_queue_ocr'] });
    if (error) throw new Error(JSON.stringify(error));
    return data[0];
  }
}

const worker = new Worker();
for (let round = 0; round < Number(rounds); round += 1) {
  const job = await worker.claim();
  if (job) await worker.processJob(job);
}
console.log(JSON.stringify(calls));
process.stdin.destroy();
