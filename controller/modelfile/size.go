package modelfile

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"remuda/internal/bytesize"
)

// maxSize is far beyond any model and keeps every sum of sizes far from overflowing.
const maxSize = 1 << 50

var sizeForm = regexp.MustCompile(`^(0|[1-9][0-9]*)([KMGT]i?)?B$`)

// ParseSize reads a whole number of bytes with its unit: B, KiB, MiB, GiB, TiB
// (powers of 1024), KB, MB, GB or TB (powers of 1000).
func ParseSize(s string) (int64, error) {
	if !sizeForm.MatchString(s) {
		return 0, errors.New("must be a whole number with a unit, such as \"16GiB\"")
	}
	n, err := bytesize.Parse(s)
	if err != nil || n > maxSize {
		return 0, errors.New("must be at most 1024TiB")
	}
	return n, nil
}

// maxIdle is longer than anybody waits for a request.
const maxIdle = 366 * 24 * time.Hour

// parseDuration reads whole numbers with units, as "90s" or "1h30m". What Go accepts
// beyond that (signs, fractions, ".5h") is more often a mistake than meant.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || strings.Trim(s, "0123456789hms") != "" || s == "0" {
		return 0, errors.New("must be a duration in whole numbers, such as \"90s\" or \"1h30m\", or \"0s\" for never")
	}
	switch {
	case d != 0 && d < time.Second:
		return 0, errors.New("must be at least 1s, or \"0s\" for never")
	case d > maxIdle:
		return 0, fmt.Errorf("must be at most %s, or \"0s\" for never", formatDuration(maxIdle))
	}
	return d, nil
}

// formatDuration is Duration.String without its zeros at the end.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ReplicaSize is what a replica with these weights takes of all its GPUs together:
// ceil(weights * 1.15 + 500 MiB), the sizing of NDIF (https://ndif.us): 15 % for what the
// runtime makes of the weights, 500 MiB for the CUDA context. An engine that sets memory aside for its cache, as vLLM
// does, takes more: say so with memory. It is never more than a file may say.
func ReplicaSize(weights int64) int64 {
	return min(ceilDiv(weights*115, 100)+500<<20, maxSize)
}

// perGPU splits a size over GPUs as NDIF does: each is charged ceil(size / n).
func perGPU(size int64, gpus int) int64 { return ceilDiv(size, int64(max(gpus, 1))) }

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// validDegree tells whether a model can be split over this many GPUs. Tensor
// parallelism gives every GPU the same number of attention heads and the same slice
// of every matrix. Those are multiples of powers of two in practice, and so are
// NVLink cliques, so engines refuse most other counts only after minutes of loading.
// A node has at most 16 GPUs.
func validDegree(n int64) bool {
	switch n {
	case 1, 2, 4, 8, 16:
		return true
	}
	return false
}
