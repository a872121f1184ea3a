// Package predictive is remuda's own scaling policy: how many replicas a model needs so
// that a share of its requests (the goal, 0.999) finds a free slot within the target wait,
// with as few GPU-hours and as few changes as that allows. The whole of it:
//
//  1. Demand is the requests that would be at work if no slot were ever missing: those that
//     run, and while some wait what the arrivals of the meantime call for. Rates are never
//     multiplied by mean lengths, which move against each other.
//  2. Need. A fleet of c slots starts a request in time as long as no more than
//     c * (1 + wait/service) are in the system. So the need is the larger of the mean demand of
//     a minute, and its peak divided by that tolerance.
//  3. Base is the peak of the need, which is forgotten with a time constant of two hours:
//     most of what dropped comes back.
//  4. Errors. Two histograms keep how the need turned out, compared with the base at a time
//     before: when a replica that was ordered then began to serve (Soon), and at most within
//     the payback time (Later). There is one for each of four conditions: how far what
//     yesterday and last week had next is above the base. Few errors are mixed with those of all
//     conditions, and these with a prior.
//     Nothing is learned from the first minutes of a load, also after an hour without requests.
//  5. Risk. Capacity grows to the error of Soon that is exceeded with the probability that
//     the goal allows, and shrinks to that of Later whose risk a removal may take. Beyond the highest need of the
//     last week it grows by what the prior says alone.
//  6. Feedback. Late requests are counted, or reckoned from the queue. They move the
//     risk, so that in the long run their share is the goal's whatever the forecast gets wrong
//     (conformal control). The risk stays within a factor of 20 of the goal's.
//  7. A queue overrides all of this upwards, and nothing is removed while requests wait. Where KV memory fills before the slots do, a slot
//     counts for less. Without any request for an hour the answer is what the season says is coming: 0, where
//     that is nothing and the minimum allows it.
//  8. Cost. Growth goes to the cheapest slot that can be placed now, reduction takes the
//     dearest first.
//
// Guarantees: Next is pure; the same Config, State and Input give the same Decision and
// State, bit for bit, also after a trip through JSON; the order of variants does not matter.
// Numbers that cannot be (NaN, infinite, negative) are findings, never part of a sum, and
// nothing is removed while the load is unknown. Time is what passes between calls: a clock
// that goes back passes none, and a suspended host a minute at most, so that a jump alone
// neither empties a window nor scales anything. A counter that restarts is no load.
//
// The default numbers were chosen on synthetic loads and the first week of ServeGen
// (docs/benchmarks.md).
package predictive
