package weights

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseSize reads a size in bytes: a whole number with an optional unit, B,
// KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000).
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "BiKMGTkmgtb ")
	unit := strings.TrimSpace(s[len(digits):])
	factor, ok := map[string]int64{
		"": 1, "B": 1,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
		"KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	}[unit]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("size %q: want a whole number and a unit, as in 256MiB or 4GiB", s)
	}
	return n * factor, nil
}
