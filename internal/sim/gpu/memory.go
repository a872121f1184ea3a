package gpu

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

// memoryUnits are the units that ParseMemory takes, in bytes. Longer names
// come before the names that they end with.
var memoryUnits = []struct {
	name  string
	bytes int64
}{
	{"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
}

// ParseMemory reads an amount of memory with its unit, as "80GiB", "81559 MiB"
// or "80 GB", and returns it in MiB, rounded down. The amount must come to at
// least one MiB.
func ParseMemory(s string) (int64, error) {
	for _, u := range memoryUnits {
		digits, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		digits = strings.TrimRight(digits, " ")
		if digits == "" || len(digits) > 20 || strings.Trim(digits, "0123456789.") != "" {
			break
		}
		amount, ok := new(big.Rat).SetString(digits)
		if !ok {
			break
		}
		amount.Mul(amount, big.NewRat(u.bytes, 1<<20))
		mib := new(big.Int).Quo(amount.Num(), amount.Denom())
		if !mib.IsInt64() || mib.Int64() > math.MaxInt32 || mib.Int64() < 1 {
			return 0, fmt.Errorf("memory %q: want 1MiB to %dTiB", s, math.MaxInt32>>20)
		}
		return mib.Int64(), nil
	}
	return 0, fmt.Errorf("memory %q: want a number and one of MiB, GiB, TiB, MB, GB, TB, as \"80GiB\"", s)
}
