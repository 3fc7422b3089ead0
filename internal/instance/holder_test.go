package instance

import (
	"encoding/json"
	"testing"
)

func TestProvenDead(t *testing.T) {
	for name, tc := range map[string]struct {
		pod, remembered string
		dead            bool
	}{
		"runs": {pod: `{"containerStatuses":[{"name":"postgresql","containerID":"a","state":{"running":{}}}]}`},
		"terminated": {dead: true,
			pod: `{"containerStatuses":[{"name":"postgresql","containerID":"a","state":{"terminated":{"containerID":"a"}}}]}`},
		"another container's end proves nothing": {
			pod: `{"containerStatuses":[{"name":"sidecar","state":{"terminated":{"containerID":"x"}}},{"name":"postgresql","containerID":"a","state":{"running":{}}}]}`},
		"waits after its end": {dead: true,
			pod: `{"containerStatuses":[{"name":"postgresql","containerID":"a","state":{"waiting":{}},"lastState":{"terminated":{"containerID":"a"}}}]}`},
		"waits before its first start": {
			pod: `{"containerStatuses":[{"name":"postgresql","containerID":"","state":{"waiting":{}}}]}`},
		"made way for another": {dead: true, remembered: "a",
			pod: `{"containerStatuses":[{"name":"postgresql","containerID":"b","state":{"running":{}},"lastState":{"terminated":{"containerID":"a"}}}]}`},
		"was restarted before it led": {remembered: "b",
			pod: `{"containerStatuses":[{"name":"postgresql","containerID":"b","state":{"running":{}},"lastState":{"terminated":{"containerID":"a"}}}]}`},
		"nothing is known":        {pod: `{}`},
		"failed with all stopped": {dead: true, pod: `{"phase":"Failed"}`},
		"failed but said to run":  {pod: `{"phase":"Failed","containerStatuses":[{"name":"postgresql","state":{"running":{}}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			var p pod
			if err := json.Unmarshal([]byte(tc.pod), &p.Status); err != nil {
				t.Fatal(err)
			}
			if dead, _ := provenDead(&p, tc.remembered); dead != tc.dead {
				t.Fatalf("dead = %t, want %t", dead, tc.dead)
			}
		})
	}
}
