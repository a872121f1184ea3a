package gateway_test

import (
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/gateway"
	"remuda/internal/testkit/proclog"
)

// TestGuessedKeys are counted, logged and slowed down, and right keys of the same address are not.
func TestGuessedKeys(t *testing.T) {
	t.Parallel()
	log := &proclog.Buffer{}
	f := newGateway(t, func(c *gateway.Config) {
		c.Logger = log.Logger()
		c.Keys.Required = true
		c.NamedKeys = []gateway.Key{{Name: "team", Token: "secret", KeyLimit: gateway.DefaultKeyLimit()}}
	})
	f.engines(newEngine(t, "a", says("x")))
	slowed := 0
	for i := range 40 {
		a := f.post(plain, "Authorization", "Bearer guess-"+strconv.Itoa(i))
		if i < 20 {
			a.requireError(t, http.StatusUnauthorized, "invalid_api_key")
		} else if a.status == http.StatusTooManyRequests {
			a.requireError(t, http.StatusTooManyRequests, "too_many_wrong_keys")
			require.NotEmpty(t, a.header.Get("Retry-After"))
			slowed++
		}
	}
	require.GreaterOrEqual(t, slowed, 1)
	require.Equal(t, http.StatusOK, f.post(plain, "Authorization", "Bearer secret").status)
	f.post(plain).requireError(t, http.StatusUnauthorized, "missing_api_key")
	f.from("127.0.0.2").post(plain, "Authorization", "Bearer x").requireError(t, http.StatusUnauthorized, "invalid_api_key")
	require.Equal(t, 41.0, f.metric("remuda_gateway_rejected_keys_total"))
	line := regexp.MustCompile(`wrong API key: client=127\.0\.0\.1 requests=(\d+)`)
	eventually(t, "all are in the log", func() bool {
		sum := 0
		for _, m := range line.FindAllStringSubmatch(log.String(), -1) {
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			sum += n
		}
		return sum == 40
	})
	require.NotContains(t, log.String(), "guess-")
}
