// Package predictive is remuda's own scaling policy: how many replicas a model needs so
// that a share of its requests (the goal, 0.999) finds a free slot within the target wait,
// with as few GPU-hours and as few changes as that allows. The whole of it:
//
//  1. Load. The offered load in slots is the arrival rate of the last minute times the mean
//     service time (Little's law). Unlike the number of running requests it rises at once
//     and is not cut off where the slots are full.
//  2. Need. The slots needed until a replica started now would serve are the largest of
//     near * load (it may jump within a cold start), far * the peak of the last hour (what
//     dropped comes back: most drops of a production load are outages elsewhere), and
//     season * what yesterday and last week say of the coming cold start, scaled to
//     the level of now. The square root of the load is added for chance (square-root
//     staffing).
//  3. Caution. near and far are a level of a ladder, from lean to generous. Every level is
//     played along in a shadow: with the measured load, this cold start and this target
//     wait, how much of the last week's load would have been late? The leanest level within
//     the goal is used. So a calm model runs lean, a restless one runs safe, a long cold
//     start makes it generous, and nobody tunes anything. A new model has 20 minutes at a middling
//     level, and nothing is removed before a hold has passed.
//  4. Saturation. A queue that is there overrides all of this upwards: the load and the
//     queue, which is to be gone within a minute. Where KV memory fills before the slots do,
//     a slot counts for less.
//  5. Change. More need is met at once, and a little beyond, so that the next small rise
//     changes nothing. Less is followed down only to the highest need of a quarter of an
//     hour, and only where that is a real step. Without any load for the hour of step 2 the
//     answer is 0, where the minimum allows it.
//  6. Cost. Growth goes to the cheapest slot that can be placed now, reduction takes the
//     dearest first.
//
// Guarantees: Next is pure; the same Config, State and Input give the same Decision and
// State, bit for bit, also after a trip through JSON; the order of variants does not matter.
// Numbers that cannot be (NaN, infinite, negative) are findings, never part of a sum, and
// nothing is removed while the load is unknown. Time is what passes between calls: a clock
// that goes back passes none, and a suspended host a minute at most, so that a jump alone
// neither empties a window nor scales anything. A counter that restarts is no load.
//
// The default numbers did best on both halves of the ServeGen trace at once
// (docs/benchmarks.md); the shadows make the choice matter little.
package predictive
