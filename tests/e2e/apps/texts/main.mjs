// A text in every place that takes one, and documents of the largest size on every way that they take.
export class Texts {
  async run(event, step) {
    const { text } = event.params;
    const refusals = [];
    for (const bad of ["\ud800", "x\udc00", "", "y".repeat(257)]) {
      await step.do(bad, () => {}).catch((error) => refusals.push(error.name));
      await step.waitForEvent("w", { type: bad, timeoutSeconds: 60 }).catch((error) => refusals.push(error.name));
    }
    const made = await step.do(text, () => ({ [text]: text, refusals }));
    const sent = await step.waitForEvent(`${text}?`, { type: text, timeoutSeconds: 600 });
    await step.do("told", () => ({ same: made[text] === text && sent.text === text && event.instanceId === text, refusals }));
    console.log(text);
    throw new Error(text);
  }
}

export class Large {
  async run(event, step) {
    const made = await step.do("made", () => event.params);
    const sent = await step.waitForEvent("sent", { type: "large", timeoutSeconds: 600 });
    const again = await step.do("made");
    return made.text === again.text && sent.text.length === again.text.length ? sent : { differs: true };
  }
}

export default {};
