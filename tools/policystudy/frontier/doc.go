// Package frontier has intervals of confidence. Everything is computed from its arguments
// alone: a bootstrap has a seed. NaN and infinities are refused.
package frontier
