package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/linked"
)

// autoscalerPackages are the packages of nomad-autoscaler that the plugin may link: its SDK
// and its plugin faces, all under the MPL.
var autoscalerPackages = []string{
	"github.com/hashicorp/nomad-autoscaler/plugins",
	"github.com/hashicorp/nomad-autoscaler/plugins/apm",
	"github.com/hashicorp/nomad-autoscaler/plugins/base",
	"github.com/hashicorp/nomad-autoscaler/plugins/shared",
	"github.com/hashicorp/nomad-autoscaler/plugins/strategy",
	"github.com/hashicorp/nomad-autoscaler/plugins/target",
	"github.com/hashicorp/nomad-autoscaler/sdk",
}

func TestNothingUnderBUSLIsLinked(t *testing.T) {
	packages, seen := linked.Packages(t), 0
	linked.RequireNoBUSL(t, packages)
	for _, p := range packages {
		require.False(t, strings.HasPrefix(p.ImportPath, "github.com/hashicorp/nomad/") && !strings.HasPrefix(p.ImportPath, "github.com/hashicorp/nomad/api"),
			"%s: nothing of Nomad but its API client", p.ImportPath)
		if !strings.HasPrefix(p.ImportPath, "github.com/hashicorp/nomad-autoscaler/") {
			continue
		}
		seen++
		allowed := false
		for _, a := range autoscalerPackages {
			allowed = allowed || p.ImportPath == a || strings.HasPrefix(p.ImportPath, a+"/proto/") || strings.HasPrefix(p.ImportPath, a+"/helper/")
		}
		require.True(t, allowed, "%s is outside nomad-autoscaler's SDK and plugin faces", p.ImportPath)
		require.Equal(t, "v0.5.0", p.Module.Version)
	}
	require.NotZero(t, seen, "the test must see the SDK")
}
