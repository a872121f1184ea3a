package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// formats are values of the formats that a string may have.
var formats = map[string]string{
	"date-time": "2026-01-02T03:04:05Z", "date": "2026-01-02", "time": "03:04:05Z", "duration": "P1D",
	"email": "mare@example.com", "hostname": "ranch.example.com", "ipv4": "192.0.2.7", "ipv6": "2001:db8::7",
	"uuid": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "uri": "https://example.com/ranch",
}

func (m *maker) text(s object, place string) (any, error) {
	if pattern, ok := s["pattern"].(string); ok {
		re, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			return nil, fmt.Errorf("schema at %s has the pattern %q: %w", place, pattern, err)
		}
		var b strings.Builder
		match(&b, re)
		return b.String(), nil
	}
	if format, ok := s["format"].(string); ok && formats[format] != "" {
		return formats[format], nil
	}
	least, most := whole(s, "minLength", 0), whole(s, "maxLength", maxText)
	if least > most || least > maxText {
		return nil, fmt.Errorf("schema at %s wants at least %d characters: must be at most maxLength and %d", place, least, maxText)
	}
	m.values += least / 16 // a long text counts as several values
	text := m.from.Words(1 + m.from.Draw(place, 4))
	if utf8.RuneCountInString(text) < least {
		text = m.from.Words(least) // a word has a character or more
		most = max(least, 1)
	}
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most])
	}
	return text, nil
}

// match appends a text that the expression matches.
func match(b *strings.Builder, re *syntax.Regexp) {
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		if len(re.Rune) > 0 {
			b.WriteRune(printable(re.Rune))
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte('a')
	case syntax.OpCapture, syntax.OpPlus:
		match(b, re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			match(b, sub)
		}
	case syntax.OpAlternate:
		match(b, re.Sub[0])
	case syntax.OpRepeat:
		for range re.Min {
			match(b, re.Sub[0])
		}
	}
}

// printable is a letter or digit of the class's ranges, or its first character.
func printable(ranges []rune) rune {
	for _, want := range "a0A" {
		for i := 0; i+1 < len(ranges); i += 2 {
			if ranges[i] <= want && want <= ranges[i+1] {
				return want
			}
		}
	}
	return ranges[0]
}

func (m *maker) number(s object, place string, integer bool) (any, error) {
	low, high := math.Inf(-1), math.Inf(1)
	step := 0.25
	if integer {
		step = 1
	}
	bound := func(keyword string) (float64, bool) {
		n, ok := s[keyword].(json.Number)
		if !ok {
			return 0, false
		}
		f, err := n.Float64()
		return f, err == nil
	}
	if f, ok := bound("multipleOf"); ok && f > 0 {
		step = f
		for k := 2.0; integer && step != math.Trunc(step) && k <= 1000; k++ {
			step = math.Round(f*k*1e9) / 1e9
		}
	}
	if f, ok := bound("minimum"); ok {
		low = f
	}
	if f, ok := bound("maximum"); ok {
		high = f
	}
	if f, ok := bound("exclusiveMinimum"); ok {
		low = max(low, math.Nextafter(f, math.Inf(1)))
	}
	if f, ok := bound("exclusiveMaximum"); ok {
		high = min(high, math.Nextafter(f, math.Inf(-1)))
	}
	first := math.Ceil(low / step)
	last := math.Floor(high / step)
	switch {
	case math.IsInf(low, -1) && math.IsInf(high, 1):
		first, last = 0, 99
	case math.IsInf(low, -1):
		first = last - 99
	case math.IsInf(high, 1):
		last = first + 99
	}
	const exact = 1 << 53 // beyond it not every whole number is a float64
	if max(math.Abs(first), math.Abs(last))*max(step, 1) > exact || math.IsNaN(first+last) {
		return nil, fmt.Errorf("schema at %s has bounds or a multipleOf beyond what this engine counts to: minimum is %v, maximum is %v", place, low, high)
	}
	if first > last {
		if integer || low > high {
			return nil, fmt.Errorf("schema at %s has bounds that no number satisfies: minimum is %v, maximum is %v", place, low, high)
		}
		return low + (high-low)/2, nil // the step was ours
	}
	n := math.Round((first+float64(m.from.Draw(place, int(min(last-first, 99))+1)))*step*1e9) / 1e9
	if integer {
		return int64(n), nil
	}
	return n, nil
}
