// Package sim is the simulated inference engine: a real HTTP server with the
// surface of vLLM's OpenAI server, for laptops, tests and benchmarks.
//
// It guarantees
//   - vLLM's routes, shapes, status codes and metric names, with sleep mode on;
//   - the routes of OpenAI's and Anthropic's APIs that vLLM serves, and OpenAI's
//     for speech, images and moderations, which vLLM lacks;
//   - text that a test can predict exactly (package text), whatever the batch,
//     the cache, a preemption or a move to another engine did; JSON and calls of
//     tools that satisfy their schemas (package dialog);
//   - exact counters of requests and tokens, at /sim/counters;
//   - weights that are really read, really freed by a sleep and checked by
//     digest at load and at every wake; damage ends the process;
//   - faults on demand, by configuration and at run time (package fault).
//
// With Config.API set to APISGLang it has SGLang's routes for sleep, load and health in place
// of vLLM's, and no metrics. It dies of what SGLang's scheduler dies of.
//
// Where real vLLM misbehaves, it does so on purpose or says no:
//   - /sleep with requests in flight answers 200, aborts them and then ends the
//     process, as vllm#28714 and #45520 report; whoever fails to drain is caught.
//   - A generation request to a sleeping engine gets 503. (vLLM crashes,
//     vllm#15483; the 503 is what vllm#30186 proposed.) So does one between two
//     partial wakes.
//   - A wake from level 2 is complete: it reads the weights again. (vLLM wants
//     a separate reload_weights call.)
//   - Before it is ready it listens and answers 503, so that the port is known
//     early. (vLLM refuses connections.)
package sim
