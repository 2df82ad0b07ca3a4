/* Search runs in a worker, which browsers start from no file: there, a hidden frame runs the same script. */
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.inside = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          this.frame.onload = null;
          const inside = this.frame.contentWindow;
          inside.postMessage = (data) => this.onmessage?.({ data });
          const script = inside.document.createElement("script");
          script.onload = () => resolve(inside);
          script.onerror = reject;
          script.src = url;
          inside.document.body.append(script);
        };
      });
      this.inside.catch((error) => this.onerror?.(error));
      document.documentElement.append(this.frame);
    }
    postMessage(data) {
      this.inside.then((inside) => inside.onmessage({ data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
