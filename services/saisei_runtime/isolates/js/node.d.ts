// What Node 24 has and its published types do not: modules of its own (`--expose-internals`) as far as they are used here, and
// parts of the platform.

declare module "internal/test/binding" {
  export function internalBinding(name: string): any;
}

declare module "internal/timers" {
  export const Timeout: Function;
  export const Immediate: Function;
  export const immediateQueue: object;
  /** A linked list, its own first and last element, for each duration in ms. */
  export const timerListMap: Record<PropertyKey, { _idleNext: unknown; msecs: number }>;
}

declare module "internal/fixed_queue" {
  class FixedQueue {
    head: object;
  }
  export = FixedQueue;
}

declare module "internal/priority_queue" {
  class PriorityQueue {}
  export = PriorityQueue;
}

declare module "internal/worker/js_transferable" {
  export const kTransfer: symbol;
  export const kDeserialize: symbol;
}

declare module "internal/webstreams/readablestream" {
  export function setupReadableStreamDefaultControllerFromSource(
    stream: ReadableStream,
    source: UnderlyingDefaultSource,
    highWaterMark: number,
    size: (chunk: unknown) => number,
  ): void;
}

declare module "internal/webstreams/writablestream" {
  export function setupWritableStreamDefaultControllerFromSink(
    stream: WritableStream,
    sink: UnderlyingSink,
    highWaterMark: number,
    size: (chunk: unknown) => number,
  ): void;
}

declare namespace WebAssembly {
  class Tag {
    constructor(type: { parameters: ValueType[] });
  }
  class Exception {
    constructor(tag: Tag, payload: unknown[]);
  }
}
