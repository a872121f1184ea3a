package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestClientsOfTheBuffer: a known key is one client, an IPv4 address is one, and a /64 of IPv6.
func TestClientsOfTheBuffer(t *testing.T) {
	for _, c := range []struct{ remote, want string }{
		{"10.0.0.1:80", "10.0.0.1"},
		{"[::ffff:10.0.0.1]:80", "10.0.0.1"},
		{"[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"},
		{"[2001:db8:1:2::1%eth0]:80", "2001:db8:1:2::/64"},
		{"pipe", "pipe"},
	} {
		require.Equal(t, c.want, bodyClient("anonymous", false, c.remote))
		require.Equal(t, "key team", bodyClient("team", true, c.remote))
	}
}

// TestBodyStore: what is held is what was taken and not given back, for each client and in all.
func TestBodyStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s bodyStore
		s.setLimits(Limits{Body: 1 << 20, Buffered: 10 << 20})
		type lent struct {
			client string
			b      []byte
		}
		var out []lent
		sums := map[string]int64{}
		total := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				client, n := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "client"), rapid.IntRange(0, 3<<20).Draw(t, "n")
				b, err := s.get(client, n)
				size := int64(max(n, len(b)))
				if err == nil {
					require.GreaterOrEqual(t, len(b), n)
					require.LessOrEqual(t, len(b), max(2*n, firstBody))
					out = append(out, lent{client, b})
					sums[client] += size
					total += size
				} else {
					require.True(t, total+2*size+firstBody > s.limit || sums[client]+2*size+firstBody > s.share)
				}
			},
			"put": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "i")
				s.put(out[i].client, out[i].b)
				sums[out[i].client] -= int64(len(out[i].b))
				total -= int64(len(out[i].b))
				out = append(out[:i], out[i+1:]...)
			},
			"": func(t *rapid.T) {
				require.Equal(t, total, s.used.Load())
				require.LessOrEqual(t, total, s.limit)
				for client, sum := range sums {
					require.Equal(t, sum, s.held[client])
					require.LessOrEqual(t, sum, s.share)
				}
			},
		})
	})
}
