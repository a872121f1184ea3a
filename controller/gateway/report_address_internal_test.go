package gateway

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddressForOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		ip         string
		secure     bool
		controller string
		want       string
	}{
		"one address":                 {"127.0.0.2", false, "http://127.0.0.1:4750", "http://127.0.0.2:8080"},
		"TLS":                         {"127.0.0.2", true, "", "https://127.0.0.2:8080"},
		"IPv6":                        {"::1", false, "", "http://[::1]:8080"},
		"all addresses":               {"0.0.0.0", false, "http://127.0.0.1:4750", "http://127.0.0.1:8080"},
		"all addresses, no port":      {"::", false, "https://127.0.0.1", "http://127.0.0.1:8080"},
		"all addresses, unknown host": {"::", false, "http://no-such-host.invalid:1", ""},
		"all addresses, not a URL":    {"::", false, "http://[", ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, addressFor(&net.TCPAddr{IP: net.ParseIP(tc.ip), Port: 8080}, tc.secure, tc.controller))
		})
	}
	require.Empty(t, addressFor(&net.UnixAddr{Name: "/x", Net: "unix"}, false, ""))
}
