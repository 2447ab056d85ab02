// One class for every kind of instance. Each effect says in the log that it ran and returns a fresh nonce: afterwards the journal,
// the output, the events and the log must tell one story.
const HOUR = 3600;

export class Mixed {
  async run(event, step) {
    const { kind, rounds } = event.params;
    const told = {};
    const policy = kind === "retry" ? { maxAttempts: 100 } : undefined;
    for (let round = 0; round < rounds; round += 1) {
      const name = `do ${round}`;
      const done = await step.do(name, async () => {
        const nonce = crypto.randomUUID();
        console.log(JSON.stringify({ effect: event.instanceId, step: name, nonce }));
        await new Promise((resolve) => setTimeout(resolve, Math.random() * 40));
        if (policy !== undefined && Math.random() < 0.4) throw new Error("by chance");
        return { nonce };
      }, policy);
      told[name] = done.nonce;
      if (kind === "sleep") await step.sleep(`sleep ${round}`, round % 3);
      if (kind === "wait") {
        const wait = `wait ${round}`;
        const got = await step.waitForEvent(wait, { type: `event ${round}`, timeoutSeconds: 10 * HOUR });
        told[wait] = got.n;
      }
    }
    // What these wait for never comes: they are terminated.
    if (kind === "hold in a step") await step.do("hold", () => new Promise(() => {}));
    if (kind === "hold between steps") await new Promise(() => {});
    if (kind === "hold in a sleep") await step.sleep("hold", 10 * HOUR);
    if (kind === "hold in a wait") await step.waitForEvent("hold", { type: "never", timeoutSeconds: 10 * HOUR });
    if (kind === "hold in a retry") {
      await step.do("hold", () => { throw new Error("always"); }, { maxAttempts: 2, initialDelaySeconds: 10 * HOUR });
    }
    return told;
  }
}

export default {};
