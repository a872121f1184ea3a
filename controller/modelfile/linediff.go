package modelfile

import (
	"fmt"
	"strings"
)

const (
	// context is how many unchanged lines are shown around a change.
	context = 2
	// maxTable bounds the work for two texts that share little: past it, the middle
	// that differs is shown as replaced.
	maxTable = 4 << 20
)

// lineDiff shows the lines that differ between two texts, by their longest common
// subsequence, with some context.
func lineDiff(old, new string) []string {
	a, b := lines(old), lines(new)
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var all []string
	for _, l := range a[:head] {
		all = append(all, "  "+l)
	}
	all = append(all, middle(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, l := range a[len(a)-tail:] {
		all = append(all, "  "+l)
	}
	return near(all)
}

func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

func middle(a, b []string) []string {
	var out []string
	if (len(a)+1)*(len(b)+1) > maxTable {
		for _, l := range a {
			out = append(out, "- "+l)
		}
		for _, l := range b {
			out = append(out, "+ "+l)
		}
		return out
	}
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int32, len(a)+1)
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	return out
}

// near leaves out what is far from every change, and says how much.
func near(all []string) []string {
	keep := make([]bool, len(all))
	for i, l := range all {
		if l[0] == ' ' {
			continue
		}
		for k := max(0, i-context); k <= min(len(all)-1, i+context); k++ {
			keep[k] = true
		}
	}
	var out []string
	skipped := 0
	flush := func() {
		if skipped > 0 {
			out = append(out, fmt.Sprintf("  … %d lines", skipped))
		}
		skipped = 0
	}
	for i, l := range all {
		if !keep[i] {
			skipped++
			continue
		}
		flush()
		out = append(out, l)
	}
	flush()
	return out
}
