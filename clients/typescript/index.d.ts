import type { Operations } from "./types.js";

export type * from "./types.js";

export interface Settings {
  /** The server's address, such as https://jobs.example.org. */
  url: string;
  /** An API key or a user's token; a function is asked before each request. */
  key?: string | (() => string | Promise<string>);
  /** How often to repeat a request whose response is lost, or that a busy server rejects. Default: 5. */
  retries?: number;
  /** Milliseconds until a request without a response counts as lost. Default: 30,000. */
  timeout?: number;
  /** Default: the global fetch. */
  fetch?: typeof fetch;
}

type Needed<T, K extends string> = K extends keyof T ? (undefined extends T[K] ? { [P in K]?: T[K] } : { [P in K]: T[K] }) : {};

/** What an operation takes. */
export type Input<K extends keyof Operations> = Needed<Operations[K], "path"> &
  Needed<Operations[K], "query"> &
  Needed<Operations[K], "body"> & {
    /** Repeating a request with the same key returns the same response. Default: a new one for each call. */
    idempotencyKey?: string;
    signal?: AbortSignal;
  };

/** A JSON value of an event. */
export interface ServerEvent {
  id: string | null;
  event: string;
  data: unknown;
}

/** A change of a job. */
export interface JobEvent {
  id: string;
  type: string;
  status: string;
  progress: Record<string, number | string | null>;
}

/** What a handler streamed. A chunk with another lease begins a new stream: the task was retried. */
export interface Chunk {
  attempt: number;
  lease: number;
  number: number;
  parts: Array<string | Record<string, unknown>>;
}

/** An error that the API answered. */
export class PenstockError extends Error {
  readonly status: number;
  /** A stable code, such as unknown_job. */
  readonly code: string;
  readonly details: Record<string, unknown>;
  /** Seconds to wait before the next try. */
  readonly retryAfter: number | null;
}

export class Penstock {
  constructor(settings: Settings);
  /** Call an operation of the API, such as "GET /api/jobs/{job_id}". */
  request<K extends keyof Operations>(
    operation: K,
    ...input: {} extends Input<K> ? [input?: Input<K>] : [input: Input<K>]
  ): Promise<Operations[K]["response"]>;
  /** The events of a stream, reopened after the last event when it breaks, until an event "end". */
  events(path: string, options?: { lastEventId?: string; signal?: AbortSignal }): AsyncGenerator<ServerEvent, void>;
  /** The changes of a job, until it ends. */
  jobEvents(jobId: string, options?: { signal?: AbortSignal }): AsyncGenerator<JobEvent, void>;
  /** What a task's handler streams, until the task ends. */
  taskStream(
    jobId: string,
    taskId: number,
    options?: { lastEventId?: string; signal?: AbortSignal },
  ): AsyncGenerator<Chunk, void>;
}
