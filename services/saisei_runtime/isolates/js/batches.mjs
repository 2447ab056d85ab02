/** What `scheduled` and `queue` handlers are called with (MW-27 … MW-29). The runtime decides what a settlement means. */

import {
  ArrayPrototype,
  ArrayPush,
  NumberIsInteger,
  ObjectFreeze,
  ObjectSetPrototypeOf,
  SafePromise,
  SafeTypeError,
  namedError,
  newList,
  quote,
} from "./intrinsics.mjs";

const MAX_DELAY = 43_200;

const refuse = (/** @type {Error} */ error) => new SafePromise((_, reject) => reject(error));
const nothing = () => undefined;

/** @param {any} header of a `run` frame */
export const scheduledEvent = (header) => ({ scheduledTime: header.time, cron: header.cron });

/**
 * The batch of one invocation. `over()` tells whether its handler has ended.
 * @param {any} header of a `run` frame @param {Uint8Array[]} bodies
 * @param {import("./environment.mjs").Environment} environment @param {() => boolean} over
 */
export function queueBatch(header, bodies, environment, over) {
  /** @type {any[]} */
  const messages = newList();
  for (let i = 0; i < bodies.length; i++) {
    const { id, timestamp, attempts } = header.messages[i];
    ArrayPush(messages, ObjectFreeze({ id, timestampMillis: timestamp, body: bodies[i], attempts }));
  }
  ObjectFreeze(ObjectSetPrototypeOf(messages, ArrayPrototype));
  const call = (/** @type {string} */ method, /** @type {string} */ args) =>
    over()
      ? refuse(namedError("unknown_batch", "the handler of this batch has ended"))
      : environment.call("", method, args, null, nothing);
  const withId = (/** @type {string} */ method, /** @type {unknown} */ id, more = "") =>
    typeof id === "string"
      ? call(method, `{"id":${quote(id)}${more}}`)
      : refuse(new SafeTypeError(`${method} takes the id of a message, a string`));
  /** @type {(delay: unknown, send: (delay: unknown) => Promise<unknown>) => Promise<unknown>} */
  const delayed = (delay, send) =>
    delay === undefined || (NumberIsInteger(delay) && /** @type {number} */ (delay) >= 0 && /** @type {number} */ (delay) <= MAX_DELAY)
      ? send(delay)
      : refuse(new SafeTypeError("delaySeconds is a whole number from 0 to 43,200"));
  return ObjectFreeze({
    batchId: header.batch,
    queue: header.queue,
    messages,
    acknowledge: (/** @type {unknown} */ id) => withId("acknowledge", id),
    retry: (/** @type {unknown} */ id, /** @type {unknown} */ delay = undefined) =>
      delayed(delay, (seconds) => withId("retry", id, seconds === undefined ? "" : `,"delay":${seconds}`)),
    acknowledgeAll: () => call("acknowledgeAll", "{}"),
    retryAll: (/** @type {unknown} */ delay = undefined) =>
      delayed(delay, (seconds) => call("retryAll", seconds === undefined ? "{}" : `{"delay":${seconds}}`)),
  });
}
