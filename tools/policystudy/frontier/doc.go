// Package frontier compares policies by cost and quality: GPU-hours against the share of
// requests that start in time.
//
// It has intervals of confidence over seeds, the Pareto frontier of a set of points, the
// cost at an equal share, and a picture of it all. Everything is computed from its
// arguments alone: a bootstrap has a seed. NaN and infinities are refused.
package frontier
