package replica_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
)

func TestTokenOrder(t *testing.T) {
	order := []replica.Token{{}, {0, 1}, {0, math.MaxUint64}, {1, 0}, {1, 7}, {2, 3}, {math.MaxUint64, 0}}
	for i, a := range order {
		for j, b := range order {
			require.Equal(t, i < j, a.Compare(b) < 0, "%s %s", a, b)
			require.Equal(t, i == j, a.Compare(b) == 0, "%s %s", a, b)
		}
		raw, err := json.Marshal(a)
		require.NoError(t, err)
		var back replica.Token
		require.NoError(t, json.Unmarshal(raw, &back))
		require.Equal(t, a, back)
	}
	require.Equal(t, "4711.3", replica.Token{Generation: 4711, Counter: 3}.String())
}

func TestBadTokens(t *testing.T) {
	for _, bad := range []string{"", "3", ".", "1.", ".1", "1.2.3", "-1.2", "1.-2", "1,2", " 1.2", "18446744073709551616.1"} {
		_, err := replica.ParseToken(bad)
		require.ErrorContains(t, err, "must be <generation>.<counter>", bad)
	}
}
