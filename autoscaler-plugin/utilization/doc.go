// Package utilization decides how many instances a model needs from how busy they
// are: the three algorithms of Workers AI's scheduler, with their priority order,
// bounds, batches, graces and switches.
//
// What it guarantees:
//
//   - Decide is pure and total. It does no I/O, reads no clock and answers every
//     input, also with a wrong configuration or absurd numbers, with a target that
//     is never negative and a typed reason. The same input gives the same answer,
//     bit for bit, and inputs and answers survive a round trip through JSON.
//   - Nothing is reduced on numbers that are missing or absurd. They are named in
//     the answer as findings and are never averaged in.
//   - Comparisons and ceilings are exact: every number is taken as the decimal it
//     is written as and computed with as a fraction, so that 4.2/0.7 needs six
//     instances and not seven, and the ends of a deadband belong to the band.
//   - Where a rule scales at all, a constant load settles: the target that an
//     upscale or a downscale asks for lies within the band.
//
// Week remembers usage for a little over a week and gives the forecast: the
// same time last week, with gaps known as gaps.
package utilization
