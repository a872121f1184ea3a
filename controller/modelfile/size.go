package modelfile

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"remuda/controller/placement"
	"remuda/internal/bytesize"
)

// maxSize is far beyond any model and keeps every sum of sizes far from overflowing.
const maxSize = 1 << 50

var sizeForm = regexp.MustCompile(`^(0|[1-9][0-9]*)([KMGT]i?)?B$`)

// What messages expect of a size and of a duration.
const (
	wantSize     = "a whole number with a unit, such as \"16GiB\""
	wantDuration = "a duration in whole numbers, such as \"90s\" or \"1h30m\", or \"0s\" for never"
)

// parseSize reads a whole number of bytes with its unit: B, KiB, MiB, GiB, TiB
// (powers of 1024), KB, MB, GB or TB (powers of 1000).
func parseSize(s string) (int64, error) {
	if !sizeForm.MatchString(s) {
		return 0, errors.New("must be " + wantSize)
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
		return 0, errors.New("must be " + wantDuration)
	}
	switch {
	case d != 0 && d < time.Second:
		return 0, errors.New("must be at least 1s, or \"0s\" for never")
	case d > maxIdle:
		return 0, fmt.Errorf("must be at most %s, or \"0s\" for never", formatDuration(maxIdle))
	}
	return d, nil
}

// wantWait is what parseWait reads, and maxWait longer than a client's connection lasts.
const (
	wantWait = "a duration from \"1s\" to \"24h\", such as \"90s\""
	maxWait  = 24 * time.Hour
)

// parseWait reads a duration that has no "never".
func parseWait(s string) (time.Duration, error) {
	d, err := parseDuration(s)
	if err != nil || d < time.Second || d > maxWait {
		return 0, errors.New("must be " + wantWait)
	}
	return d, nil
}

// wantGoal is what parseGoal reads.
const wantGoal = "a duration from \"1ms\" to \"1h\", such as \"2s\""

// parseGoal reads how long an answer may take.
func parseGoal(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Millisecond || d > time.Hour {
		return 0, errors.New("must be " + wantGoal)
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

// replicaSize is placement.ReplicaSize, but no more than a file may say.
func replicaSize(weights int64) int64 { return min(placement.ReplicaSize(weights), maxSize) }
