"""A worker loop with an unmodified supabase-py, as a program: the counterpart of supabase_js/worker.mjs."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from supabase import ClientOptions, create_client


def main(url: str, key: str, worker: str, job: str, lease_seconds: str, hold_after: str = "") -> None:
    client: Any = create_client(url, key, ClientOptions(schema="penstock"))

    def call(name: str, **arguments: Any) -> Any:
        return client.rpc(name, arguments).execute().data

    done = 0
    while call("get_job", p_job_id=job)["status"] != "completed":
        tasks = call(
            "claim_tasks",
            p_worker_id=worker,
            p_max_tasks=20,
            p_task_types=["work"],
            p_lease_seconds=int(lease_seconds),
        )
        if not tasks:
            call("reclaim_stale_tasks")
            time.sleep(0.05)
        for index, task in enumerate(tasks):
            if hold_after and done >= int(hold_after):
                print(f"holding {len(tasks) - index}", flush=True)
                signal.pause()
            if index == 0:
                call("heartbeat_task", p_task_id=task["id"], p_worker_id=worker, p_lease=task["lease"])
            output = {"n": task["input"]["n"], "by": worker}
            call(
                "complete_task",
                p_task_id=task["id"],
                p_worker_id=worker,
                p_output=output,
                p_lease=task["lease"],
            )
            done += 1
    print(f"done {done}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
