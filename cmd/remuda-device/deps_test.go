package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/linked"
)

// nomadPackages are the packages of Nomad that the plugin may link: its plugin
// SDK, and the two small ones that the SDK itself imports. At v1.6.3 all of
// them are under the MPL; from v1.7 on the SDK pulls in packages that are not.
var nomadPackages = []string{
	"github.com/hashicorp/nomad/plugins/",
	"github.com/hashicorp/nomad/helper/pluginutils/grpcutils",
	"github.com/hashicorp/nomad/helper/pointer",
}

func TestNothingUnderBUSLIsLinked(t *testing.T) {
	packages, seen := linked.Packages(t), 0
	linked.RequireNoBUSL(t, packages)
	for _, p := range packages {
		if !strings.HasPrefix(p.ImportPath, "github.com/hashicorp/nomad/") {
			continue
		}
		seen++
		allowed := false
		for _, a := range nomadPackages {
			allowed = allowed || p.ImportPath == a || strings.HasSuffix(a, "/") && strings.HasPrefix(p.ImportPath, a)
		}
		require.True(t, allowed, "%s is outside Nomad's plugin SDK", p.ImportPath)
		require.Equal(t, "v1.6.3", p.Module.Version, "the last release whose SDK is under the MPL alone")
	}
	require.NotZero(t, seen, "the test must see the SDK")
}
