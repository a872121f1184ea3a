package capacity

import (
	"math"
	"math/bits"
)

// sum adds floats exactly: its value is the true sum, rounded once, whatever the order in
// which they came. NaN and infinities behave as in IEEE 754, again in any order.
//
// It is a fixed-point number whose limbs span every finite float64.
type sum struct {
	limbs [limbCount]int64
	// low and high are the first of the limbs in use and the one after the last.
	low, high int
	odd       float64 // the sum of what is not finite
}

const (
	lowest    = -1074 // the exponent of the lowest bit of a float64
	limbBits  = 32
	limbMask  = 1<<limbBits - 1
	limbCount = (1024-lowest)/limbBits + 3 // and two for the carry of 2^31 values and the sign
)

func (s *sum) reset() {
	clear(s.limbs[s.low:s.high])
	s.low, s.high, s.odd = 0, 0, 0
}

// add adds x. At most 2^31 values may be added.
func (s *sum) add(x float64) {
	b := math.Float64bits(x)
	exp, mant := int(b>>52&0x7ff), b&(1<<52-1)
	switch {
	case exp == 0x7ff:
		s.odd += x
		return
	case exp > 0:
		mant |= 1 << 52
	case mant == 0:
		return
	default:
		exp = 1 // subnormal
	}
	i, shift := (exp-1)/limbBits, uint((exp-1)%limbBits)
	hi, lo := mant>>(64-shift), mant<<shift // of 96 bits
	limbs := s.limbs[i : i+3]
	if b>>63 == 0 {
		limbs[0] += int64(lo & limbMask)
		limbs[1] += int64(lo >> limbBits)
		limbs[2] += int64(hi)
	} else {
		limbs[0] -= int64(lo & limbMask)
		limbs[1] -= int64(lo >> limbBits)
		limbs[2] -= int64(hi)
	}
	if s.high == 0 {
		s.low = i
	}
	s.low, s.high = min(s.low, i), max(s.high, i+3)
}

// value is the sum, rounded to the nearest float64, ties to even.
func (s *sum) value() float64 {
	switch {
	case s.odd != 0:
		return s.odd
	case s.high == 0:
		return 0
	}
	// Carry, as far as one can reach: what lies in the limbs stays the same number.
	top := min(s.high+1, limbCount-1)
	for i := s.low; i < top; i++ {
		s.limbs[i+1] += s.limbs[i] >> limbBits
		s.limbs[i] &= limbMask
	}
	s.high = top + 1
	if s.limbs[top] < 0 {
		negated := *s
		for i := range negated.limbs {
			negated.limbs[i] = -s.limbs[i]
		}
		return -negated.value()
	}
	for top > 3 && s.limbs[top] == 0 {
		top--
	}
	top = max(top, 3)
	sticky := false
	for i := s.low; i < top-3; i++ {
		sticky = sticky || s.limbs[i] != 0
	}
	hi := uint64(s.limbs[top])<<limbBits | uint64(s.limbs[top-1])
	lo := uint64(s.limbs[top-2])<<limbBits | uint64(s.limbs[top-3])
	return rounded(hi, lo, sticky, lowest+(top-3)*limbBits)
}

// rounded is the float64 nearest to (hi, lo) times 2^exp, or to a little more where sticky is
// set, which is so only if hi is not 0.
func rounded(hi, lo uint64, sticky bool, exp int) float64 {
	if n := bits.Len64(hi); n > 0 { // they are shifted out
		sticky = sticky || lo<<(64-n) != 0
		lo = hi<<(64-n) | lo>>n
		exp += n
		if sticky { // more than ten bits are rounded away: the lowest can say that there is more
			lo |= 1
		}
	}
	return math.Ldexp(float64(lo), exp)
}
