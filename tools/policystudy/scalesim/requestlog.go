package scalesim

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxArrivals is the most that a trace may have: 16 GiB of them would be too many for any
// machine this runs on.
const maxArrivals = 200_000_000

// requestColumns are the names that published traces give to what is read here.
var requestColumns = [3][]string{
	{"timestamp"},
	{"contexttokens", "request tokens"},
	{"generatedtokens", "response tokens"},
}

// ReadRequests reads a log of requests, one a line, with a header: the format of
// azure-llm-2023-conv.csv (TIMESTAMP,ContextTokens,GeneratedTokens) and of its successors.
// Columns are found by name, others are passed over; BurstGPT's names are known too.
// A time is "2023-11-16 18:15:46.6805900" (a zone may follow, UTC if not) or seconds.
//
// The first request arrives at 0, and the trace ends one mean gap after the last. Requests
// out of order are sorted. Service times come from speed. The text is bounded only by
// maxArrivals lines, each of them at most 64 KiB; the first bad field is named with its
// line.
func ReadRequests(name string, r io.Reader, speed Speed) (*Trace, error) {
	lines := csv.NewReader(&shortLines{r: bufio.NewReaderSize(r, maxLine)})
	lines.ReuseRecord = true
	header, err := lines.Read()
	if err != nil {
		return nil, fmt.Errorf("read %s: no header: %w", name, err)
	}
	var at [3]int
	for k, names := range requestColumns {
		at[k] = slices.IndexFunc(header, func(h string) bool {
			return slices.Contains(names, strings.ToLower(strings.TrimSpace(strings.TrimPrefix(h, "\ufeff"))))
		})
		if at[k] < 0 {
			return nil, fmt.Errorf("read %s: line 1 names no column %q: its header is %q", name, names[0], strings.Join(header, ","))
		}
	}
	t := &Trace{Name: name}
	for {
		row, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		line, _ := lines.FieldPos(0)
		if len(t.Arrivals) == maxArrivals {
			return nil, fmt.Errorf("read %s: line %d: more than %d requests", name, line, maxArrivals)
		}
		when, err := parseTime(row[at[0]])
		if err != nil {
			return nil, fmt.Errorf("read %s: line %d: %w", name, line, err)
		}
		var tokens [2]int32
		for k := range tokens {
			n, err := strconv.ParseInt(strings.TrimSpace(row[at[k+1]]), 10, 32)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("read %s: line %d: %s is %q: it must be a whole number of tokens from 0 to %d", name, line, header0(requestColumns[k+1]), row[at[k+1]], math.MaxInt32)
			}
			tokens[k] = int32(n)
		}
		t.Arrivals = append(t.Arrivals, Arrival{At: when, Service: speed.Service(tokens[0], tokens[1]), Context: tokens[0], Generated: tokens[1]})
	}
	if len(t.Arrivals) == 0 {
		return nil, fmt.Errorf("read %s: it has a header and no requests", name)
	}
	slices.SortStableFunc(t.Arrivals, func(a, b Arrival) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
	first, last := t.Arrivals[0].At, t.Arrivals[len(t.Arrivals)-1].At
	length := uint64(last) - uint64(first) // the difference of two int64 always fits
	if length > uint64(maxDuration/2) {    // a gap as long as all may follow
		return nil, fmt.Errorf("read %s: its requests are more than %v apart", name, maxDuration/2)
	}
	for i := range t.Arrivals {
		t.Arrivals[i].At -= first
	}
	gap := time.Duration(length) / time.Duration(max(len(t.Arrivals)-1, 1))
	t.Span = time.Duration(length) + max(gap, 1)
	return t, nil
}

func header0(names []string) string { return names[0] }

// parseTime reads a date with a time of day, or seconds.
func parseTime(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if sec, err := strconv.ParseFloat(s, 64); err == nil {
		if !(sec >= 0 && sec <= 1e9) {
			return 0, fmt.Errorf("timestamp is %q: seconds must be from 0 to 1e9", s)
		}
		return time.Duration(math.Round(sec * float64(time.Second))), nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", time.RFC3339} {
		when, err := time.Parse(layout, s)
		if err == nil && when.Year() >= 1970 && when.Year() < 2200 {
			return time.Duration(when.UnixNano()), nil
		}
	}
	return 0, fmt.Errorf("timestamp is %q: it must be a time such as 2023-11-16 18:15:46.6805900, or seconds", s)
}

// maxLine is the longest line that is read.
const maxLine = 64 << 10

// shortLines passes text on and fails at a line that is longer than maxLine, so that a file
// without line ends does not fill the memory. Quoted line ends count as line ends here: no
// field of these files has any.
type shortLines struct {
	r    *bufio.Reader
	line int
}

// Read implements io.Reader.
func (s *shortLines) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	for rest := p[:n]; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			s.line += len(rest)
			break
		}
		if s.line+i > maxLine {
			s.line = maxLine + 1
			break
		}
		s.line, rest = 0, rest[i+1:]
	}
	if s.line > maxLine {
		return n, fmt.Errorf("a line is longer than %d bytes: is it a CSV file?", maxLine)
	}
	return n, err
}
