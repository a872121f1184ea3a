package gateway

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResponsesAreForgotten(t *testing.T) {
	t.Parallel()
	var r responses
	for i := range maxResponses {
		r.put(fmt.Sprint(i), kept{replica: "a", key: "one"})
	}
	_, ok := r.get("0")
	require.True(t, ok)
	r.put("new", kept{replica: "b", key: "one"})
	_, ok = r.get("1")
	require.False(t, ok, "the one that was asked for longest ago")
	_, ok = r.get("0")
	require.True(t, ok)
	require.Len(t, r.byID, maxResponses)
	require.Equal(t, maxResponses, r.order.Len())

	r.put("0", kept{replica: "c", key: "two"})
	k, _ := r.get("0")
	require.Equal(t, kept{replica: "a", key: "one"}, k, "another key cannot take it over")
	r.put("0", kept{replica: "c", key: "one"})
	k, _ = r.get("0")
	require.Equal(t, "c", k.replica)
	r.forget("0")
	_, ok = r.get("0")
	require.False(t, ok)
	r.put(string(make([]byte, maxResponseID+1)), kept{})
	require.Len(t, r.byID, maxResponses-1)
}
