// Package bytesize reads and writes sizes in bytes.
package bytesize

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
)

// units are those that Parse reads, in bytes.
var units = map[string]int64{
	"": 1, "B": 1,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

var form = regexp.MustCompile(`^([0-9]{1,20}(?:\.[0-9]{1,20})?) *([A-Za-z]*)$`)

// Parse reads a number with an optional unit: B, KiB, MiB, GiB or TiB (powers of 1024),
// KB, MB, GB or TB (powers of 1000), as in "512", "4GiB", "81559 MiB" or "1.5GiB". A part
// of a byte is dropped. The error names s.
func Parse(s string) (int64, error) {
	m := form.FindStringSubmatch(s)
	if m == nil || units[m[2]] == 0 {
		return 0, fmt.Errorf("size %q: want a number and a unit, as in 256MiB or 4GiB", s)
	}
	amount, _ := new(big.Rat).SetString(m[1]) // form has checked it
	amount.Mul(amount, new(big.Rat).SetInt64(units[m[2]]))
	n := new(big.Int).Quo(amount.Num(), amount.Denom())
	if !n.IsInt64() {
		return 0, fmt.Errorf("size %q: want less than 8388608TiB", s)
	}
	return n.Int64(), nil
}

var binary = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// Format writes a size that Parse reads back exactly, in the largest of the binary units
// that divides it, as "16GiB" or "1536B".
func Format(n int64) string {
	for _, u := range binary {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

// Text writes a size for people, in the largest binary unit in which it is at least 1,
// with one decimal where it is not a whole number, as "16 GiB" or "-1.5 MiB".
func Text(n int64) string {
	unit, v := "B", float64(n)
	for _, u := range binary {
		if n >= u.bytes || n <= -u.bytes {
			unit, v = u.name, float64(n)/float64(u.bytes)
			break
		}
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
