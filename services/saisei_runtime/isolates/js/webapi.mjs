/**
 * Loads Node's fetch classes. Imported before anything else, because what they take from the realm at their start they keep for ever.
 *
 * Their own FinalizationRegistry would call `signal.removeEventListener`, which may be a tenant's, whenever the collector runs: after the
 * context of that tenant has been told to be quiescent (W-014). They get one that registers nothing; what it would have cleaned up is a
 * listener on a signal, and that is gone with the signal.
 */

const { FinalizationRegistry } = globalThis;

class Nothing {
  register() {}
  unregister() {
    return false;
  }
}

const put = (/** @type {unknown} */ value) =>
  Object.defineProperty(globalThis, "FinalizationRegistry", { value, writable: true, enumerable: false, configurable: true });

put(Nothing);
new Request("http://preload.invalid/", { signal: new AbortController().signal });
new Response("x");
new FormData();
put(FinalizationRegistry);
