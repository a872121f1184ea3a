// Package hpa decides how many replicas there should be, as Kubernetes' horizontal pod
// autoscaler does and as Replicate's scaler does. It is pure: no I/O, no goroutines, no
// clock of its own.
//
// It guarantees:
//
//   - Every ratio, ceiling and percentage is computed in whole numbers and is exact. The
//     float arithmetic of Kubernetes is not: 7/3*27 gives it 64.
//   - The same input and State give the same Decision and State, bit for bit, and a State
//     that went through JSON goes on as if nothing had happened.
//   - Time is what passed between two calls, as the caller's clock tells it. A clock that
//     goes back passes no time, and one call passes Behavior.MaxGapSeconds at most, so that
//     neither a jump of the clock nor a suspended host empties a window. No window can get
//     stuck, because only ages are kept.
//   - A number from outside that cannot be (NaN, infinite, negative) is told and never
//     becomes part of a sum.
//
// The rules are those of Kubernetes' HorizontalPodAutoscaler v2:
//
//  1. The count does not change while metric/target is within the tolerance of 1.
//  2. Otherwise the new count is the current one times metric/target, rounded up.
//  3. Replicas without a usable metric count as the target when the count would fall, and
//     as 0 when it would rise. Unready replicas count as 0 when it would rise. The count is
//     held if counting them would reverse the direction.
//  4. The count rises to the smallest recommendation of the scale-up window at most, and
//     falls to the largest one of the scale-down window (stabilization).
//  5. Policies limit the change within a period.
//  6. The count stays within min and max.
//  7. The default Behavior.
//
// Measured and Average are rules 1 to 3, Behavior.Next is rules 4 to 6,
// DefaultBehavior is rule 7. Backlog is the queue-based form of Replicate's scaler.
//
// A State belongs to one target and one goroutine at a time.
package hpa

import "math"

// MaxCount is the largest replica count there is, as Kubernetes counts in 32 bits. Larger
// counts are taken for this one.
const MaxCount = math.MaxInt32

// count brings a count from outside into what can be.
func count(n int) int { return min(max(n, 0), MaxCount) }
