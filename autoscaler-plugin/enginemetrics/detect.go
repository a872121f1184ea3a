package enginemetrics

import (
	"bytes"
	"fmt"
	"slices"
)

// scan notes the lines whose metric some dialect knows.
func (p *Parser) scan(page []byte) error {
	p.lines = p.lines[:0]
	for text := range bytes.Lines(page) {
		text = bytes.Trim(text, " \t\r\n")
		uses := p.index[string(metricName(text))]
		if len(uses) == 0 {
			continue
		}
		if len(p.lines) == MaxSeries {
			return fmt.Errorf("metrics page: %w: more than %d engine series", ErrTooManySeries, MaxSeries)
		}
		p.lines = append(p.lines, line{text, uses})
	}
	return nil
}

// metricName is the name at the start of a line, also in its quoted form
// {"name",…}. It is empty for comments.
func metricName(text []byte) []byte {
	if len(text) > 0 && text[0] == '{' {
		rest, ok := bytes.CutPrefix(bytes.TrimLeft(text[1:], " \t"), []byte(`"`))
		if !ok {
			return nil
		}
		name, _, _ := bytes.Cut(rest, []byte(`"`))
		return name
	}
	for i, c := range text {
		if c == '{' || c == ' ' || c == '\t' {
			return text[:i]
		}
	}
	return nil
}

// choose picks the dialect: the one told, or the one that has the most of the
// core quantities on the page.
func (p *Parser) choose() (int, Finding) {
	seen := make([]int, len(p.dialects))
	var has [quantities]uint64 // bit per dialect; there are few
	for _, l := range p.lines {
		for _, u := range l.uses {
			if bit := uint64(1) << u.dialect; isCore(u.quantity) && has[u.quantity]&bit == 0 {
				has[u.quantity] |= bit
				seen[u.dialect]++
			}
		}
	}
	most := slices.Max(seen)
	var shown []string
	best := -1
	for i, n := range seen {
		if n == most && n > 0 {
			best = i
			shown = append(shown, p.dialects[i].Name)
		}
	}
	switch {
	case p.told >= 0 && (seen[p.told] > 0 || most == 0):
		if seen[p.told] == 0 {
			return p.told, finding(NoSeries, []string{p.dialects[p.told].Name}, nil)
		}
		return p.told, Finding{}
	case p.told >= 0:
		return p.told, finding(WrongDialect, []string{p.dialects[p.told].Name}, shown)
	case len(shown) == 0:
		return -1, finding(NoSeries, []string{"any known engine"}, nil)
	case len(shown) > 1:
		return -1, finding(AmbiguousDialect, nil, shown)
	}
	return best, Finding{}
}
