// Package capacity decides from the engines' own metrics whether a model has too few
// replicas, enough, or more than it needs, and which of its variants to change.
//
// The algorithm is that of the capacity analyzer of llm-d's Workload Variant Autoscaler
// (WVA; "upstream" in this package): replicas that are not saturated have
// spare KV cache and spare places in their queues; where the average of either is below its
// trigger the cheapest variant grows by one; where the load would fit on one replica fewer
// the most expensive variant shrinks by one; targets of a model-based optimizer are then
// held against that.
//
// There are two sets of rules. [WVA] is the upstream algorithm as it is, for comparison: it
// accepts values that no valid input has, and notes how it uses them. [Safe], the default,
// differs where upstream is known to answer wrongly:
//
//   - Load of saturated replicas counts when a removal is simulated, and a saturated
//     replica never counts in favour of having enough.
//   - Targets start from the replicas that there are, not from those that report: none is
//     stopped because it starts or is silent.
//   - Nothing is removed while a replica's load is unknown.
//   - A variant without a model-based target follows the analyzer.
//   - Values that are absent, old or cannot be (NaN, infinite, negative, KV usage above 1)
//     are named and left out of every sum.
//   - Every variant has a decision, whether or not it reports.
//   - The replica that goes takes its own size with it, the largest of its variant first.
//
// Guarantees: an answer depends on nothing but its input, and not on the input's order: sums
// are exact and rounded once. The same input gives the same answer, bit for bit, and inputs
// and answers survive a round trip through JSON. Under Safe no replica is removed while the
// load would not fit on those that remain, or while a replica is unknown, and more load never
// means fewer replicas.
//
// Everything here is pure: no I/O, no clock, no goroutines, no logging. An [Analyzer] has
// buffers and is for one goroutine at a time; the functions are for any number.
package capacity
