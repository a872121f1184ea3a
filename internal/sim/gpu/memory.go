package gpu

import (
	"fmt"
	"math"
	"strings"

	"remuda/internal/bytesize"
)

// ParseMemory reads an amount of memory with its unit, as "80GiB", "81559 MiB"
// or "80 GB", and returns it in MiB, rounded down. The amount must come to at
// least one MiB.
func ParseMemory(s string) (int64, error) {
	n, err := bytesize.Parse(s)
	if err != nil || !strings.HasSuffix(s, "B") {
		return 0, fmt.Errorf("memory %q: must be a number and one of MiB, GiB, TiB, MB, GB, TB, as \"80GiB\"", s)
	}
	mib := n >> 20
	if mib < 1 || mib > math.MaxInt32 {
		return 0, fmt.Errorf("memory %q: must be 1MiB to %dTiB", s, math.MaxInt32>>20)
	}
	return mib, nil
}
