// Package compose answers requests to pipelines (package pipeline) as if they were models:
// chat completions and completions in OpenAI's form, whole or streamed.
//
// Each call of a step is a request in this process to Config.Next, which is the gateway's own
// handler: it waits in the queue of its model, is routed, retried and logged as any other,
// with the client's Authorization, X-Remuda-* headers and trace, and with the request ID
// "<the pipeline's>.<step>".
//
// It guarantees:
//   - Nothing outlives Serve: when it returns every step has ended. A client that leaves ends
//     them all.
//   - Before the first byte an error is an answer of its own; after it, an error event and
//     then the end of the connection, as the gateway does it. Both name the step.
//   - The tokens that the answer counts are those of all its steps that ended.
//   - A pipeline whose source is wrong fails its own requests and no others.
//   - A step never runs a pipeline, whatever the gateway has been told meanwhile.
//   - Memory per request is bounded: Config.MaxAnswer for each call that is made.
package compose
