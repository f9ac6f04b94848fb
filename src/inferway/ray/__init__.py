"""A deployment file's tasks over Ray Serve: the policy decides, replicas on any machines answer.

- `ingress`: the application of Ray Serve that serves the file's tasks over your deployments.

It needs the extra ``ray-serve``. Ray itself is imported when an application is made.
"""

from inferway.ray.application import ingress

__all__ = ["ingress"]
