package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/gatewayreport"
)

// A gateway that is left alone has all shares within two seconds: the leader counts the others as gone after
// ShareTTL, this one reports within reportEvery of that, and the answer takes its time. Two reports in a row may be
// lost.
func TestAGatewayThatIsLeftHasAllWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	const answer = 100 * time.Millisecond
	require.LessOrEqual(t, gatewayreport.ShareTTL+reportEvery+answer, 2*time.Second)
	require.Less(t, 3*reportEvery+answer, gatewayreport.ShareTTL)
}
