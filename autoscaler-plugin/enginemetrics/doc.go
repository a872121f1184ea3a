// Package enginemetrics reads what inference engines say about themselves.
//
// It turns a metrics page of an engine, or the answer of a Prometheus server,
// into a Sample per replica, and keeps the peaks of the last minute in memory.
// It guarantees:
//
//   - A number that cannot be true (NaN, an infinity, a negative count, a
//     KV-cache usage above 1) is a flawed value. It is never averaged
//     and never stands for zero.
//   - Data-parallel ranks of one engine are one replica: running and waiting
//     requests are summed, the KV-cache usage is the highest.
//   - An engine that shows the same gauge under an old and a new name is counted
//     once; the new name wins.
//   - Series that are there but carry another model's name are a Finding that
//     raises an alarm. They never look like an idle model.
//   - What is missing is missing: a replica that nobody could read is stale or
//     unknown, not idle.
//   - Answers do not depend on the order of the input nor on that of a map.
//   - Memory is bounded, whatever a page or an answer contains.
//
// The package is pure: no network, no goroutines, no clock, no logging. Time is
// an argument. Nothing in it is safe for concurrent use unless it says so.
//
// The names of the engines' metrics are those of the table "Engine metrics" in
// the project's facts about autoscaling; the two Prometheus queries and the
// peaks over one minute are those of the capacity analyzer's description.
package enginemetrics
