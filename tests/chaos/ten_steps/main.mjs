// Ten steps, each of which says in the log that its effect ran and returns a fresh nonce. Afterwards the journal, the output and
// the log must tell one story.
export class TenSteps {
  async run(event, step) {
    const nonces = {};
    for (let index = 0; index < 10; index += 1) {
      const name = `step ${index}`;
      const done = await step.do(name, async () => {
        const nonce = crypto.randomUUID();
        console.log(JSON.stringify({ effect: event.instanceId, step: name, nonce }));
        await new Promise((resolve) => setTimeout(resolve, 5 + Math.random() * 40));
        return { nonce, index };
      });
      nonces[name] = done.nonce;
    }
    return { nonces };
  }
}

export default {};
