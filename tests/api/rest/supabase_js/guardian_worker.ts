class GuardianWorkerV4 {
    private async processJob(job: Job) {
        const jobId = job.job_id;
        const estimatedTokens = job.job_payload.estimated_tokens || 1000;
        let actualTokens = 0;
        let apiCapacityAcquired = false;
        
        try {
            // FIXED: Include job_id in all logs
            this.logger.info('Processing job', { job_id: jobId, job_type: job.job_type });
            
            // Update heartbeat using RPC (not direct DB)
            await this.supabase.rpc('update_job_heartbeat', {
                p_job_id: jobId,
                p_worker_id: this.workerId
            });
            
            // API rate limiting for AI jobs
            if (job.job_type.startsWith('ai_queue')) {
                const hasCapacity = await this.supabase.rpc('acquire_api_capacity', {
                    p_provider_name: 'openai',
                    p_api_endpoint: 'gpt-4o-mini',
                    p_estimated_tokens: estimatedTokens
                });
                
                if (!hasCapacity.data) {
                    // FIXED: Use reschedule RPC with jitter for backpressure
                    await this.supabase.rpc('reschedule_job', {
                        p_job_id: jobId,
                        p_delay_seconds: 30,
                        p_reason: 'api_rate_limit_backpressure',
                        p_add_jitter: true  // Prevents herd effects under global backpressure
                    });
                    return;
                }
                apiCapacityAcquired = true;
            }
            
            // Process and track actual tokens used
            const results = await this.processJobByType(job);
            actualTokens = results.tokens_used || estimatedTokens;
            
            // Complete job with correlation
            await this.supabase.rpc('complete_job', {
                p_job_id: jobId,
                p_worker_id: this.workerId,
                p_job_result: results
            });
            
            // ADDED: Track AI processing usage for analytics
            const profileId = await this.getProfileIdFromJobPayload(job);
            if (profileId && results.tokens_used) {
                await this.supabase.rpc('track_ai_processing_usage', {
                    p_profile_id: profileId,
                    p_job_id: jobId,
                    p_tokens_used: results.tokens_used,
                    p_processing_seconds: processingTime
                });
            }
            
        } catch (error) {
            await this.handleJobError(job, error);
        } finally {
            // FIXED: Always release API capacity with proper token delta
            if (apiCapacityAcquired) {
                await this.supabase.rpc('release_api_capacity', {
                    p_provider_name: 'openai',
                    p_api_endpoint: 'gpt-4o-mini',
                    p_estimated_tokens: estimatedTokens,
                    p_actual_tokens: actualTokens
                });
            }
        }
    }
}
