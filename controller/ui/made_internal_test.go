package ui

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// drawn counts how often it is rendered.
type drawn struct {
	number int
	times  *int
}

func (d drawn) String() string {
	*d.times++
	return strconv.Itoa(d.number)
}

// A live part is rendered anew only if its data or its user has changed, or for another token or address.
func TestMadeParts(t *testing.T) {
	var m madeParts
	times := 0
	draw := func(token, from, role string, index uint64, number int) part {
		return m.part(&visit{token: token, from: from, User: user{Role: role}, index: index}, "error", drawn{number, &times})
	}
	is := func(rendered int, l part, index uint64, number int) {
		t.Helper()
		require.Equal(t, rendered, times)
		require.Equal(t, index, l.index)
		require.Contains(t, string(l.body), fmt.Sprintf(">%d<", number))
	}
	is(1, draw("a", "/ui", "operator", 1, 7), 1, 7)
	is(1, draw("a", "/ui", "operator", 2, 7), 2, 7)
	is(2, draw("a", "/ui", "operator", 3, 8), 3, 8)
	is(3, draw("a", "/ui", "read-only", 3, 8), 3, 8)
	is(4, draw("a", "/ui?q=x", "read-only", 3, 8), 3, 8)
	is(5, draw("b", "/ui", "read-only", 3, 8), 3, 8)
	is(5, draw("a", "/ui", "read-only", 4, 8), 4, 8)
	for i := range 3 * maxMade {
		draw("a", strconv.Itoa(i), "", 1, 1)
		require.Len(t, m.of, min(i+4, maxMade), "a new one takes the place of another")
	}
}

func TestTakesGzip(t *testing.T) {
	for accepted, want := range map[string]bool{
		"gzip, deflate, br, zstd": true, "br, gzip;q=0.5": true, "deflate,gzip": true, "gzip; q=1": true,
		"": false, "br": false, "gzip;q=0": false, "gzip; q=0.0": false, "x-gzip-like": false,
	} {
		require.Equal(t, want, takesGzip(accepted), accepted)
	}
}
