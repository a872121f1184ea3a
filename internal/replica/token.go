package replica

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Token is a fencing token. Of two engines of one replica only the one with the larger
// token may be used.
//
// The counter is lockd's, which grows with every grant on its node. The generation is the
// index at which the controller registered the replica's job, 0 for a job that was run by
// hand: a replica that is registered anew, on whichever node, has a larger one.
type Token struct {
	Generation uint64
	Counter    uint64
}

// Compare is negative, zero or positive as t is smaller than, equal to or larger than o.
func (t Token) Compare(o Token) int {
	return cmp.Or(cmp.Compare(t.Generation, o.Generation), cmp.Compare(t.Counter, o.Counter))
}

// String returns "<generation>.<counter>".
func (t Token) String() string { return fmt.Sprintf("%d.%d", t.Generation, t.Counter) }

// ParseToken reads what String returns.
func ParseToken(s string) (Token, error) {
	var t Token
	generation, counter, found := strings.Cut(s, ".")
	var err error
	if found {
		if t.Generation, err = strconv.ParseUint(generation, 10, 64); err == nil {
			t.Counter, err = strconv.ParseUint(counter, 10, 64)
		}
	}
	if !found || err != nil {
		return Token{}, fmt.Errorf("token is %q: must be <generation>.<counter>, two whole numbers", s)
	}
	return t, nil
}

// MarshalText returns String.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText is ParseToken.
func (t *Token) UnmarshalText(text []byte) (err error) {
	*t, err = ParseToken(string(text))
	return err
}
