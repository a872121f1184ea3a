package capacity

import (
	"math"
	"math/bits"
)

// sum adds floats exactly: its value is the true sum, rounded once, whatever the order in
// which they came. NaN and infinities behave as in IEEE 754, again in any order.
//
// Usual values are added in 128 bits, fixed point, of which the lowest is 2^-fraction. Others
// go into limbs that span every finite float64.
type sum struct {
	hi, lo uint64 // two's complement
	wide   bool   // limbs are in use
	nan    bool
	up     bool // +Inf was added
	down   bool // -Inf was added
	limbs  [limbCount]int64
}

const (
	fraction = 62 // 2^-62 is the lowest bit of the 128
	headroom = 40 // values below 2^(53+40-62) go there, and 2^34 of them fit

	lowest    = -1074 // the exponent of the lowest bit of a float64
	limbBits  = 32
	limbMask  = 1<<limbBits - 1
	limbCount = (1024-lowest)/limbBits + 3 // and two for the carry of 2^31 values and the sign
)

func (s *sum) reset() {
	s.hi, s.lo, s.nan, s.up, s.down = 0, 0, false, false, false
	if s.wide {
		s.wide, s.limbs = false, [limbCount]int64{}
	}
}

// add adds x. At most 2^31 values may be added.
func (s *sum) add(x float64) {
	b := math.Float64bits(x)
	exp := int(b >> 52 & 0x7ff)
	mant := b & (1<<52 - 1)
	if exp == 0 {
		if mant == 0 {
			return
		}
		exp = 1
	} else {
		mant |= 1 << 52
	}
	shift := exp - 1075 + fraction
	if shift < 0 {
		if zeros := bits.TrailingZeros64(mant); zeros >= -shift {
			mant, shift = mant>>uint(-shift), 0
		}
	}
	if uint(shift) > headroom {
		s.addWide(x)
		return
	}
	lo := mant << uint(shift)
	hi := mant >> uint(64-shift)
	if b>>63 == 0 {
		var carry uint64
		s.lo, carry = bits.Add64(s.lo, lo, 0)
		s.hi += hi + carry
		return
	}
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, lo, 0)
	s.hi -= hi + borrow
}

// addShare is add, faster for what is below 1 and has no bits below 2^-fraction.
func (s *sum) addShare(x float64) {
	t := x * (1 << fraction)
	i := int64(t)
	if !(x < 1 && x > -1) || float64(i) != t {
		s.add(x)
		return
	}
	lo, carry := bits.Add64(s.lo, uint64(i), 0)
	s.lo = lo
	s.hi += uint64(i>>63) + carry
}

// addWhole is add, faster for whole numbers below 2^31.
func (s *sum) addWhole(x float64) {
	i := int64(x)
	if !(x < 1<<31 && x > -1<<31) || float64(i) != x {
		s.add(x)
		return
	}
	lo, carry := bits.Add64(s.lo, uint64(i)<<fraction, 0)
	s.lo = lo
	s.hi += uint64(i>>(64-fraction)) + carry
}

func (s *sum) addWide(x float64) {
	switch {
	case x != x:
		s.nan = true
		return
	case math.IsInf(x, 1):
		s.up = true
		return
	case math.IsInf(x, -1):
		s.down = true
		return
	}
	frac, exp := math.Frexp(math.Abs(x))
	s.addLimbs(uint64(math.Ldexp(frac, 53)), exp-53, x < 0)
}

// addLimbs adds mant times 2^exp, or takes it away. A mantissa below 2^53 has no bits under
// 2^lowest; that of a subnormal has zeros there.
func (s *sum) addLimbs(mant uint64, exp int, negative bool) {
	s.wide = true
	at := exp - lowest
	if at < 0 {
		mant, at = mant>>uint(-at), 0
	}
	i, shift := at/limbBits, uint(at%limbBits)
	hi, lo := mant>>(64-shift), mant<<shift // of 96 bits
	parts := [3]int64{int64(lo & limbMask), int64(lo >> limbBits), int64(hi)}
	for k, part := range parts {
		if negative {
			part = -part
		}
		s.limbs[i+k] += part
	}
}

// value is the sum, rounded to the nearest float64, ties to even.
func (s *sum) value() float64 {
	switch {
	case s.nan || s.up && s.down:
		return math.NaN()
	case s.up:
		return math.Inf(1)
	case s.down:
		return math.Inf(-1)
	}
	hi, lo := s.hi, s.lo
	negative := hi>>63 == 1
	if negative {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
	}
	if s.wide {
		return s.wideValue(hi, lo, negative)
	}
	return signed(rounded(hi, lo, false, -fraction), negative)
}

// wideValue is the sum of the limbs and of the 128 bits, which it takes apart.
func (s *sum) wideValue(hi, lo uint64, negative bool) float64 {
	all := *s
	all.addLimbs(lo&limbMask, -fraction, negative)
	all.addLimbs(lo>>limbBits, limbBits-fraction, negative)
	all.addLimbs(hi&limbMask, 64-fraction, negative)
	all.addLimbs(hi>>limbBits, 64+limbBits-fraction, negative)
	limbs := &all.limbs
	carry := func() {
		for i := range limbCount - 1 {
			limbs[i+1] += limbs[i] >> limbBits
			limbs[i] &= limbMask
		}
	}
	carry()
	below := limbs[limbCount-1] < 0
	if below {
		for i := range limbs {
			limbs[i] = -limbs[i]
		}
		carry()
	}
	top := limbCount - 1
	for top > 3 && limbs[top] == 0 {
		top--
	}
	sticky := false
	for _, limb := range limbs[:top-3] {
		sticky = sticky || limb != 0
	}
	hi = uint64(limbs[top])<<limbBits | uint64(limbs[top-1])
	lo = uint64(limbs[top-2])<<limbBits | uint64(limbs[top-3])
	return signed(rounded(hi, lo, sticky, lowest+(top-3)*limbBits), below)
}

func signed(x float64, negative bool) float64 {
	if negative {
		return -x
	}
	return x
}

// rounded is the float64 nearest to (hi, lo) times 2^exp, or to a little more where sticky is
// set.
func rounded(hi, lo uint64, sticky bool, exp int) float64 {
	if hi == 0 && lo < 1<<53 && !sticky {
		return scaled(float64(lo), exp)
	}
	n := uint(bits.Len64(hi)) // of hi, which is shifted out
	if hi == 0 {
		shift := uint(bits.LeadingZeros64(lo))
		lo <<= shift
		exp -= int(shift)
	} else {
		sticky = sticky || lo<<(64-n) != 0
		lo = hi<<(64-n) | lo>>n
		exp += int(n)
	}
	if sticky { // more than ten bits are rounded away: the lowest can say that there is more
		lo |= 1
	}
	return scaled(float64(lo), exp)
}

// scaled is x times 2^exp for an x that is 0 or from 1 to 2^64.
func scaled(x float64, exp int) float64 {
	if exp >= -1022 && exp < 1024-65 { // neither 2^exp nor the product leaves the normal range
		return x * math.Float64frombits(uint64(exp+1023)<<52)
	}
	return math.Ldexp(x, exp)
}
