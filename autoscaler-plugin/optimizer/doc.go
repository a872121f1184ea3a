// Package optimizer says how many replicas of each variant hold a target wait at a
// rate of arrivals, and picks the cheapest mix. Its targets are the optional
// model-based targets of the capacity analyzer (package capacity).
//
// The model, in three parts:
//
//   - An engine that batches serves each request slower the more it runs at once. A
//     line, seconds = base + slope*running, is fitted to the engine's own metrics with
//     a method that a few wrong samples cannot bend (Fit).
//   - Replicas behind one gateway queue are one station whose speed depends on how many
//     requests are in it: a birth-death chain, which is Erlang C where the slope is
//     zero, with the Allen-Cunneen correction for measured variability and Hayward's for
//     bursts (Queue).
//   - The cheapest mix is found by branch and bound over the counts (Optimize).
//
// What it guarantees: it is pure and deterministic, no answer depends on the order of
// the samples or of the variants, and it refuses with a typed reason where the
// samples are too few, too narrow or absurd. A refusal gives no targets at all, so that
// the analyzer decides alone. Inputs and answers survive a round trip through JSON.
package optimizer
